{{/* What every name begins with. Not the release's: docs, commands and the Lease say the same names. */}}
{{- define "agentmemory.name" -}}
{{ .Values.fullnameOverride | default "agentmemory" }}
{{- end }}

{{/* What selects the pods of a component; takes dict root, component. It never changes: a Deployment's selector cannot. */}}
{{- define "agentmemory.selector" -}}
app.kubernetes.io/name: {{ include "agentmemory.name" .root }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* Labels of an object; takes dict root, component where it is of one, and labels that stand above commonLabels. */}}
{{- define "agentmemory.labels" -}}
app.kubernetes.io/name: {{ include "agentmemory.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: agentmemory
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- with merge dict (.labels | default dict) .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Labels of a pod; takes dict root, component, and values where the component has podLabels. */}}
{{- define "agentmemory.podLabels" -}}
{{- $selector := include "agentmemory.selector" . | fromYaml }}
{{- $instance := dict "app.kubernetes.io/instance" .root.Release.Name }}
{{- /* The selector's stand above those of the values: without them the Deployment would not find its pods. */}}
{{- merge $selector $instance (dig "podLabels" dict (.values | default dict)) .root.Values.commonLabels | toYaml }}
{{- end }}

{{/* Metadata of a namespaced object; takes dict root, name, and component, namespace where they are not the usual. */}}
{{- define "agentmemory.metadata" -}}
name: {{ .name }}
namespace: {{ .namespace | default .root.Release.Namespace }}
labels:
  {{- include "agentmemory.labels" . | nindent 2 }}
{{- end }}

{{/* Where the data keys of privacy zones lie. */}}
{{- define "agentmemory.zoneKeys" -}}
{{ .Values.zones.namespace | default (printf "%s-zone-keys" (include "agentmemory.name" .)) }}
{{- end }}

{{- define "agentmemory.image" -}}
{{- $image := .Values.image -}}
{{ $image.repository }}:{{ $image.tag | default .Chart.AppVersion }}{{ with $image.digest }}@{{ . }}{{ end }}
{{- end }}

{{/* The port of the API, by name: what it speaks. */}}
{{- define "agentmemory.scheme" -}}
{{ ternary "https" "http" .Values.api.tls.enabled }}
{{- end }}

{{/* Where callers in the cluster reach the API. */}}
{{- define "agentmemory.url" -}}
{{- $scheme := include "agentmemory.scheme" . }}
{{- $usual := ternary 443 80 .Values.api.tls.enabled }}
{{- $port := .Values.api.service.port | int | default $usual }}
{{- $scheme }}://{{ include "agentmemory.name" . }}-api.{{ .Release.Namespace }}{{ if ne $port $usual }}:{{ $port }}{{ end }}
{{- end }}

{{/* The Secret with the certificate of the API. */}}
{{- define "agentmemory.tlsSecret" -}}
{{ .Values.api.tls.secretName | default (printf "%s-api-tls" (include "agentmemory.name" .)) }}
{{- end }}

{{/* A binding of a role to an account of the release; takes dict root, name, account, and namespace for a RoleBinding. */}}
{{- define "agentmemory.binding" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ if .namespace }}RoleBinding{{ else }}ClusterRoleBinding{{ end }}
metadata:
  name: {{ .name }}
  {{- with .namespace }}
  namespace: {{ . }}
  {{- end }}
  labels:
    {{- include "agentmemory.labels" . | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ if .namespace }}Role{{ else }}ClusterRole{{ end }}
  name: {{ .name }}
subjects:
  - kind: ServiceAccount
    name: {{ .account }}
    namespace: {{ .root.Release.Namespace }}
{{- end }}

{{/* A role and its binding to one account; takes dict root, name, account, rules (the name of a template), and namespace. */}}
{{- define "agentmemory.grant" -}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ if .namespace }}Role{{ else }}ClusterRole{{ end }}
metadata:
  name: {{ .name }}
  {{- with .namespace }}
  namespace: {{ . }}
  {{- end }}
  labels:
    {{- include "agentmemory.labels" . | nindent 4 }}
rules:
  {{- include .rules . | trim | nindent 2 }}
---
{{ include "agentmemory.binding" . }}
{{- end }}

{{/* The options of both commands that hold them to some namespaces. */}}
{{- define "agentmemory.namespaceArgs" -}}
{{- range .Values.namespaces }}
- --namespace
- {{ . | quote }}
{{- end }}
{{- end }}

{{/* The variables of a container; takes dict root, values (of the component). */}}
{{- define "agentmemory.env" -}}
{{- $zones := dict }}
{{- if .root.Values.zones.enabled }}
{{- $zones = dict "AGENTMEMORY_ZONE_KEYS_NAMESPACE" (include "agentmemory.zoneKeys" .root) }}
{{- end }}
{{- /* Values kept from a release before embedding (--reuse-values) lack it; wordllama is what that release used. */}}
{{- $embedding := dict }}
{{- if eq .component "operator" }}
{{- $embedding = dict "AGENTMEMORY_DEFAULT_EMBEDDING" ((.root.Values.embedding | default dict).default | default "wordllama") }}
{{- end }}
{{- $models := dict }}
{{- if (.root.Values.embedding | default dict).modelsVolume }}
{{- $models = dict "AGENTMEMORY_MODELS" "/models" }}
{{- end }}
{{- $mem0 := dict }}
{{- if and (eq .component "api") (.values.mem0 | default dict).enabled }}
{{- $mem0 = dict "AGENTMEMORY_MEM0" "true" }}
{{- end }}
{{- $ui := dict }}
{{- if and (eq .component "api") (.values.ui | default dict).enabled }}
{{- $ui = dict "AGENTMEMORY_UI" "true" }}
{{- end }}
{{- $settings := mergeOverwrite (deepCopy .root.Values.settings) .values.settings $zones $embedding $models $mem0 $ui }}
{{- range $name, $value := $settings }}
- name: {{ $name }}
  value: {{ if kindIs "float64" $value }}{{ $value | int64 | toString | quote }}{{ else }}{{ $value | toString | quote }}{{ end }}
{{- end }}
{{- with .values.env }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* What the pods of both components have in common, but the container; takes dict root, component, values, and volumes. */}}
{{- define "agentmemory.pod" -}}
serviceAccountName: {{ include "agentmemory.name" .root }}-{{ .component }}
{{- include "agentmemory.podSettings" .root }}
{{- with .values.topologySpread }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: {{ . }}
    labelSelector:
      matchLabels:
        {{- include "agentmemory.selector" $ | nindent 8 }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- range $field := list "nodeSelector" "tolerations" "affinity" }}
{{- with index $.values $field }}
{{ $field }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- $models := list }}
{{- with (.root.Values.embedding | default dict).modelsVolume }}
{{- $models = list (merge (dict "name" "models") .) }}
{{- end }}
{{- with concat (.volumes | default list) $models .values.volumes }}
volumes:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* What every pod of our image has: whom it runs as, and with which credentials its image is pulled. */}}
{{- define "agentmemory.podSettings" }}
{{- with .Values.podSecurityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* What both containers have in common, after args and ports; takes dict root, component, values, port, and mounts. */}}
{{- define "agentmemory.container" -}}
name: {{ .component }}
image: {{ include "agentmemory.image" .root }}
{{- with .root.Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- with include "agentmemory.env" . | trim }}
env:
  {{- . | nindent 2 }}
{{- end }}
{{- with .values.envFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- $models := ternary (list (dict "name" "models" "mountPath" "/models" "readOnly" true)) list (not (empty (.root.Values.embedding | default dict).modelsVolume)) }}
{{- with concat (.mounts | default list) $models .values.volumeMounts }}
volumeMounts:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- $scheme := eq .port "https" | ternary ", scheme: HTTPS" "" }}
startupProbe:
  httpGet: {path: /healthz, port: {{ .port }}{{ $scheme }}}
  periodSeconds: 1
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz, port: {{ .port }}{{ $scheme }}}
readinessProbe:
  httpGet: {path: /readyz, port: {{ .port }}{{ $scheme }}}
  periodSeconds: 5
resources:
  {{- toYaml .values.resources | nindent 2 }}
{{- with .root.Values.securityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Arguments after those of the chart; takes values (of the component). */}}
{{- define "agentmemory.extraArgs" -}}
{{- range .extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{/* Annotations and labels of a pod; takes dict root, component, values. */}}
{{- define "agentmemory.podMetadata" -}}
{{- with .values.podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
labels:
  {{- include "agentmemory.podLabels" . | nindent 2 }}
{{- end }}
