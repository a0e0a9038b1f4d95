{{/* What each account may do, once for every mode. tests/chart holds these rules to those of examples/install, of which
     tests/operator/test_install.py takes away one right after the other. */}}

{{/* The operator, in each namespace that it watches or in the cluster. */}}
{{- define "agentmemory.rules.operator" -}}
- apiGroups: [agentmemory.dev]
  resources: [agentmemories, qdrantconnections, memorysnapshots, memoryrestores]
  verbs: [list, watch]
- apiGroups: [agentmemory.dev]
  resources: [agentmemories, memorysnapshots, memoryrestores] # finalizers; the spec is never written
  verbs: [patch]
- apiGroups: [agentmemory.dev]
  resources: [agentmemories] # whether it is still there, right before a restore moves its alias
  verbs: [get]
- apiGroups: [agentmemory.dev]
  resources: [memorysnapshots] # made by schedule, removed by retention
  verbs: [create, delete]
- apiGroups: [agentmemory.dev]
  resources: [memoryrestores] # what an agent begins with: spec.bootstrap
  verbs: [create]
- apiGroups: [agentmemory.dev]
  resources: [agentmemories/status, qdrantconnections/status, memorysnapshots/status, memoryrestores/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [events]
  verbs: [create, get, patch]
{{ include "agentmemory.rules.namespaces" . }}
{{- end }}

{{/* kube-system's uid names the cluster; labels open connections (allowedNamespaces). */}}
{{- define "agentmemory.rules.namespaces" -}}
- apiGroups: [""]
  resources: [namespaces]
  verbs: [get]
{{- end }}

{{/* The API, in each namespace that it watches. */}}
{{- define "agentmemory.rules.api" -}}
- apiGroups: [agentmemory.dev]
  resources: [agentmemories, qdrantconnections]
  verbs: [list, watch]
{{ include "agentmemory.rules.namespaces" . }}
{{- end }}

{{/* Whose token a caller has: no Role can give it. */}}
{{- define "agentmemory.rules.tokens" -}}
- apiGroups: [authentication.k8s.io]
  resources: [tokenreviews]
  verbs: [create]
{{- end }}

{{/* The API, in the cluster. */}}
{{- define "agentmemory.rules.clusterApi" -}}
{{ include "agentmemory.rules.api" . }}
{{ include "agentmemory.rules.tokens" . }}
{{- end }}

{{/* Which cluster this is: no Role of another namespace can give it. */}}
{{- define "agentmemory.rules.cluster" -}}
- apiGroups: [""]
  resources: [namespaces]
  resourceNames: [kube-system]
  verbs: [get]
{{- end }}

{{/* Keys of Qdrant and of embedding providers, by name. */}}
{{- define "agentmemory.rules.secrets" -}}
- apiGroups: [""]
  resources: [secrets]
  verbs: [get]
{{- end }}

{{/* The lease that makes one of several operators work, and the claims: which namespace a slug belongs to. The names are
     the program's own, whatever the release is called. */}}
{{- define "agentmemory.rules.lease" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [agentmemory-operator]
  verbs: [get, update]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [create]
- apiGroups: [""]
  resources: [configmaps]
  resourceNames:
    {{- range splitList "" "0123456789abcdef" }}
    - agentmemory-claims-{{ . }}
    {{- end }}
  verbs: [get, update]
{{- end }}

{{/* Which namespace a slug belongs to: the API serves it for no other. */}}
{{- define "agentmemory.rules.claims" -}}
- apiGroups: [""]
  resources: [configmaps]
  verbs: [list, watch]
{{- end }}

{{/* What the API needs of Secrets: the operator writes it, one Secret for each agent. */}}
{{- define "agentmemory.rules.handover" -}}
- apiGroups: [""]
  resources: [secrets] # get: by the rules of secrets
  verbs: [create, delete, list, update]
{{- end }}
