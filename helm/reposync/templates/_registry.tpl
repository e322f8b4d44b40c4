{{/* The registry file's text, as the program reads it. */}}
{{- define "reposync.registry.text" -}}
{{- if kindIs "string" .Values.registry -}}
{{- .Values.registry -}}
{{- else -}}
{{- toYaml .Values.registry -}}
{{- end -}}
{{- end -}}

{{/* The registry as YAML that `fromYaml` takes: nothing where it is in a ConfigMap that is not the chart's. */}}
{{- define "reposync.registry" -}}
{{- if not .Values.existingRegistry.configMap -}}
{{- $read := fromYaml (include "reposync.registry.text" .) -}}
{{- if hasKey $read "Error" -}}
{{- fail (printf "\n\nregistry is no YAML mapping: %s" $read.Error) -}}
{{- end -}}
{{- toYaml $read -}}
{{- end -}}
{{- end -}}

{{- define "reposync.registry.section" -}}
{{- $registry := fromYaml (include "reposync.registry" .root) | default dict -}}
{{- $section := get $registry .name -}}
{{- toYaml (kindIs "map" $section | ternary $section dict) -}}
{{- end -}}

{{- define "reposync.rootPath" -}}
{{- $http := fromYaml (include "reposync.registry.section" (dict "root" . "name" "http")) -}}
{{- $http.root_path | default "" | trimSuffix "/" -}}
{{- end -}}

{{/* `open`, `token` or `off`. */}}
{{- define "reposync.metricsAccess" -}}
{{- $http := fromYaml (include "reposync.registry.section" (dict "root" . "name" "http")) -}}
{{- /* The server listens on every address, and so has tokens. */ -}}
{{- $http.metrics | default "token" -}}
{{- end -}}

{{/* What the program reads once, when it starts. Everything else of the registry is in force two seconds after it arrived. */}}
{{- define "reposync.registry.read-once" -}}
{{- $http := fromYaml (include "reposync.registry.section" (dict "root" . "name" "http")) -}}
{{- $daemon := fromYaml (include "reposync.registry.section" (dict "root" . "name" "daemon")) -}}
{{- toYaml (dict
  "embedding" (fromYaml (include "reposync.registry.section" (dict "root" . "name" "embedding")))
  "qdrant" (fromYaml (include "reposync.registry.section" (dict "root" . "name" "qdrant")))
  "http" (omit $http "allow_local_sources")
  "watchdog" (get $daemon "lock_watchdog_seconds")
) -}}
{{- end -}}
