{{/* A variable from a Secret: name, secret, key. */}}
{{- define "reposync.secretVariable" -}}
- name: {{ .name | quote }}
  valueFrom:
    secretKeyRef:
      name: {{ .secret | quote }}
      key: {{ .key | quote }}
{{- end -}}

{{/* What the migration needs as well: how the database is reached, and what people added for that. */}}
{{- define "reposync.commonVariables" -}}
- name: REPOSYNC_STATE_DIR
  value: /var/lib/reposync
- name: REPOSYNC_LOG_FORMAT
  value: {{ .Values.server.logFormat | quote }}
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
{{- if .Values.database.existingSecret }}
{{ include "reposync.secretVariable" (dict "name" "REPOSYNC_DATABASE_URL" "secret" .Values.database.existingSecret "key" .Values.database.key) }}
{{- end }}
{{- if include "reposync.hasCa" . }}
- name: SSL_CERT_FILE
  value: /etc/reposync/ca/ca.crt
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "reposync.variables" -}}
{{ include "reposync.commonVariables" . }}
- name: REPOSYNC_CONFIG
  value: /etc/reposync/registry/repositories.yaml
{{ include "reposync.secretVariable" (dict "name" "REPOSYNC_API_TOKEN" "secret" (include "reposync.tokenSecret" .) "key" (empty .Values.auth.existingSecret | ternary "REPOSYNC_API_TOKEN" .Values.auth.key)) }}
{{- if .Values.redis.existingSecret }}
{{ include "reposync.secretVariable" (dict "name" "REPOSYNC_REDIS_URL" "secret" .Values.redis.existingSecret "key" .Values.redis.key) }}
{{- else if .Values.redis.url }}
- name: REPOSYNC_REDIS_URL
  value: {{ .Values.redis.url | quote }}
{{- end }}
{{- with .Values.qdrant.url }}
- name: REPOSYNC_QDRANT_URL
  value: {{ . | quote }}
{{- end }}
{{- if .Values.qdrant.apiKey.existingSecret }}
{{ include "reposync.secretVariable" (dict "name" "REPOSYNC_QDRANT_API_KEY" "secret" .Values.qdrant.apiKey.existingSecret "key" .Values.qdrant.apiKey.key) }}
{{- end }}
{{- if .Values.signIn.existingSecret }}
{{ include "reposync.secretVariable" (dict "name" "GITLAB_SIGN_IN_SECRET" "secret" .Values.signIn.existingSecret "key" .Values.signIn.key) }}
{{- end }}
{{- range $name, $from := .Values.secretEnv }}
{{ include "reposync.secretVariable" (dict "name" $name "secret" $from.secret "key" $from.key) }}
{{- end }}
{{- if or .Values.proxy.http .Values.proxy.https }}
{{- with .Values.proxy.http }}
- name: HTTP_PROXY
  value: {{ . | quote }}
{{- end }}
{{- with .Values.proxy.https }}
- name: HTTPS_PROXY
  value: {{ . | quote }}
{{- end }}
- name: NO_PROXY
  value: {{ concat (list "localhost" "127.0.0.1" "::1" ".svc" ".cluster.local") .Values.proxy.noProxy | join "," | quote }}
{{- end }}
{{- end -}}

{{- define "reposync.hasCa" -}}
{{- if or .Values.ca.configMap .Values.ca.secret -}}true{{- end -}}
{{- end -}}

{{- define "reposync.caSource" -}}
{{- if .Values.ca.configMap -}}
configMap:
  name: {{ .Values.ca.configMap | quote }}
{{- else -}}
secret:
  secretName: {{ .Values.ca.secret | quote }}
{{- end }}
  items:
    - {key: {{ .Values.ca.key | quote }}, path: ca.crt}
{{- end -}}

{{/* Where pods may be, and as whom. */}}
{{- define "reposync.placement" -}}
{{- with .Values.podSecurityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.hostAliases }}
hostAliases:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
