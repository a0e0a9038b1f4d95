{{/* What each account may do, once for every mode. examples/install is rendered from here; tests/operator/test_install.py
     takes away one right after the other there. */}}

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

{{- define "agentmemory.rules.namespaces" -}}
- apiGroups: [""]
  resources: [namespaces] # kube-system's uid names the cluster; labels open connections (spec.namespaces)
  verbs: [get]
{{- end }}

{{/* The API, in each namespace that it watches. */}}
{{- define "agentmemory.rules.api" -}}
- apiGroups: [agentmemory.dev]
  resources: [agentmemories, qdrantconnections, memorysnapshots, memoryrestores]
  verbs: [list, watch]
{{ include "agentmemory.rules.namespaces" . }}
{{- end }}

{{/* No Role can give it. */}}
{{- define "agentmemory.rules.tokens" -}}
- apiGroups: [authentication.k8s.io]
  resources: [tokenreviews] # whose token a caller has
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

{{- define "agentmemory.rules.secrets" -}}
# Keys of Qdrant and of embedding providers, by name.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get]
{{- end }}

{{/* The names are the program's own, whatever the release is called. */}}
{{- define "agentmemory.rules.lease" -}}
# The lease that makes one of several operators work, and the claims: which namespace a slug belongs to.
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

{{- define "agentmemory.rules.claims" -}}
# Which namespace a slug belongs to: the API serves it for no other.
- apiGroups: [""]
  resources: [configmaps]
  verbs: [list, watch]
{{- end }}

{{- define "agentmemory.rules.handover" -}}
# What the API needs of Secrets: the operator writes it here, one Secret for each agent, and the API reads no other
# namespace's.
- apiGroups: [""]
  resources: [secrets] # get: by the rules of secrets
  verbs: [create, delete, list, update]
{{- end }}

{{- define "agentmemory.rules.zoneKeysApi" -}}
# Data keys of privacy zones, made before the first memory under each, destroyed within their Secret: nothing else is here.
- apiGroups: [""]
  resources: [secrets]
  verbs: [create, get, update]
{{- end }}

{{- define "agentmemory.rules.zoneKeysOperator" -}}
# Data keys of privacy zones: wrapped again when the wrapping key is rotated, deleted with their agent.
- apiGroups: [""]
  resources: [secrets] # get: by the rules of secrets
  verbs: [delete, list, update]
{{- end }}
