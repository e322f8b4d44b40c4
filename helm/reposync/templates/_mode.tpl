{{/* Each is "true" or nothing. */}}

{{- define "reposync.several" -}}
{{- if or .Values.autoscaling.enabled (gt (int .Values.replicas) 1) -}}true{{- end -}}
{{- end -}}

{{- define "reposync.externalDatabase" -}}
{{- if .Values.database.existingSecret -}}true{{- end -}}
{{- end -}}

{{- define "reposync.externalRedis" -}}
{{- if or .Values.redis.existingSecret .Values.redis.url -}}true{{- end -}}
{{- end -}}

{{- define "reposync.externalIndex" -}}
{{- $qdrant := fromYaml (include "reposync.registry.section" (dict "root" . "name" "qdrant")) -}}
{{- if or .Values.qdrant.url $qdrant.url -}}true{{- end -}}
{{- end -}}

{{/* Database or index lie in the state folder: one pod at a time may have it. */}}
{{- define "reposync.keepsState" -}}
{{- if not (and (include "reposync.externalDatabase" .) (include "reposync.externalIndex" .)) -}}true{{- end -}}
{{- end -}}

{{- define "reposync.ownClaim" -}}
{{- if and (include "reposync.keepsState" .) .Values.persistence.enabled (not .Values.persistence.existingClaim) -}}true{{- end -}}
{{- end -}}

{{- define "reposync.migrates" -}}
{{- if and .Values.migration.enabled (include "reposync.externalDatabase" .) -}}true{{- end -}}
{{- end -}}

{{/* Runs under way have their grace, then 5 s to be handed back; what HTTP still answers 5 s; the rest is slack. */}}
{{- define "reposync.neededGraceSeconds" -}}
{{- $daemon := fromYaml (include "reposync.registry.section" (dict "root" . "name" "daemon")) -}}
{{- $grace := hasKey $daemon "shutdown_grace_seconds" | ternary $daemon.shutdown_grace_seconds 20 -}}
{{- if kindIs "string" $grace -}}
{{- $grace = 20 -}}
{{- end -}}
{{- add (int .Values.preStopSleepSeconds) (int (ceil $grace)) 20 -}}
{{- end -}}

{{- define "reposync.concurrency" -}}
{{- $daemon := fromYaml (include "reposync.registry.section" (dict "root" . "name" "daemon")) -}}
{{- kindIs "float64" $daemon.concurrency | ternary $daemon.concurrency 4 | int -}}
{{- end -}}
