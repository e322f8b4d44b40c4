{{- define "reposync.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* At most 50 characters: what is derived from it has to fit into 63. */}}
{{- define "reposync.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains (include "reposync.name" .) .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "reposync.name" .) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "reposync.selector" -}}
app.kubernetes.io/name: {{ include "reposync.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "reposync.labels" -}}
{{- $own := dict
  "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-")
  "app.kubernetes.io/version" (.Values.image.tag | default .Chart.AppVersion | trunc 63 | trimSuffix "-" | trimSuffix "." | trimSuffix "_")
  "app.kubernetes.io/managed-by" .Release.Service
  "app.kubernetes.io/part-of" "reposync"
-}}
{{- toYaml (merge (fromYaml (include "reposync.selector" .)) $own .Values.commonLabels) -}}
{{- end -}}

{{/* Without the chart's version: an upgrade that changes nothing about the pods restarts none. */}}
{{- define "reposync.podLabels" -}}
{{- $own := merge (fromYaml (include "reposync.selector" .root)) (dict "app.kubernetes.io/component" .component) -}}
{{- toYaml (merge $own (.more | default dict) .root.Values.commonLabels) -}}
{{- end -}}

{{- define "reposync.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "reposync.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- define "reposync.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{- define "reposync.tokenSecret" -}}
{{- .Values.auth.existingSecret | default (printf "%s-token" (include "reposync.fullname" .)) -}}
{{- end -}}

{{- define "reposync.registryConfigMap" -}}
{{- .Values.existingRegistry.configMap | default (printf "%s-registry" (include "reposync.fullname" .)) -}}
{{- end -}}

{{- define "reposync.claim" -}}
{{- .Values.persistence.existingClaim | default (printf "%s-state" (include "reposync.fullname" .)) -}}
{{- end -}}
