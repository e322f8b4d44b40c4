{{/* Checks that values.schema.json cannot express. All problems are reported at once, each with a remedy. */}}
{{- define "reposync.checks" -}}
{{- $problems := list -}}
{{- $registry := fromYaml (include "reposync.registry" .) | default dict -}}
{{- $http := fromYaml (include "reposync.registry.section" (dict "root" . "name" "http")) -}}
{{- $daemon := fromYaml (include "reposync.registry.section" (dict "root" . "name" "daemon")) -}}

{{- /* Several pods need what they share. */ -}}
{{- if include "reposync.several" . -}}
  {{- $who := .Values.autoscaling.enabled | ternary "autoscaling is enabled" (printf "replicas is %d" (int .Values.replicas)) -}}
  {{- if not (include "reposync.externalDatabase" .) -}}
    {{- $problems = append $problems (printf "%s, and each pod would have its own database. Set database.existingSecret to a Secret whose key %s holds postgresql://user:password@host/name or use one pod." $who .Values.database.key) -}}
  {{- end -}}
  {{- if not (include "reposync.externalIndex" .) -}}
    {{- $problems = append $problems (printf "%s, and each pod would have its own index. Set qdrant.url or use one pod." $who) -}}
  {{- end -}}
  {{- if and .Values.redis.required (not (include "reposync.externalRedis" .)) -}}
    {{- $problems = append $problems (printf "%s, and there is no Redis. Set redis.existingSecret or redis.url, or set redis.required to false to guard syncs by the database only." $who) -}}
  {{- end -}}
{{- end -}}
{{- if and .Values.autoscaling.enabled (gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas)) -}}
  {{- $problems = append $problems "autoscaling.minReplicas is more than autoscaling.maxReplicas." -}}
{{- end -}}
{{- if and (not (include "reposync.keepsState" .)) .Values.persistence.existingClaim -}}
  {{- $problems = append $problems "persistence.existingClaim is set, but database and index are external, so it would stay empty. Remove it." -}}
{{- end -}}

{{- /* The registry. */ -}}
{{- if and .Values.existingRegistry.configMap .Values.registry -}}
  {{- $problems = append $problems "registry and existingRegistry.configMap are both set: keep one of them." -}}
{{- end -}}
{{- range $path := fromYamlArray (include "reposync.clearSecrets" $registry) -}}
  {{- $problems = append $problems (printf "registry.%s holds a secret in the clear, and everybody who can read ConfigMaps could read it. Write ${NAME} there, and name its Secret under secretEnv: {NAME: {secret: ..., key: ...}}." $path) -}}
{{- end -}}
{{- range $problem := fromYamlArray (include "reposync.wrongCrontabs" $registry) -}}
  {{- $problems = append $problems $problem -}}
{{- end -}}
{{- if not .Values.envFrom -}}
  {{- $set := concat (keys .Values.secretEnv) (list "POD_NAME" "REPOSYNC_API_TOKEN" "REPOSYNC_STATE_DIR" "REPOSYNC_CONFIG") -}}
  {{- range .Values.extraEnv -}}{{- $set = append $set .name -}}{{- end -}}
  {{- if .Values.qdrant.url -}}{{- $set = append $set "REPOSYNC_QDRANT_URL" -}}{{- end -}}
  {{- if .Values.qdrant.apiKey.existingSecret -}}{{- $set = append $set "REPOSYNC_QDRANT_API_KEY" -}}{{- end -}}
  {{- if .Values.signIn.existingSecret -}}{{- $set = append $set "GITLAB_SIGN_IN_SECRET" -}}{{- end -}}
  {{- range $name := fromYamlArray (include "reposync.variablesNeeded" $registry) -}}
    {{- if not (or (has $name $set) (has (printf "%s_FILE" $name) $set)) -}}
      {{- $instead := eq $name "GITLAB_SIGN_IN_SECRET" | ternary "signIn.existingSecret to the Secret of the application in GitLab" (printf "secretEnv.%s to {secret: ..., key: ...}, or write ${%s:-default}" $name $name) -}}
      {{- $problems = append $problems (printf "The registry names ${%s}, and nothing sets it: the program would not start. Set %s." $name $instead) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}

{{- /* Variables that have values of their own. */ -}}
{{- $owned := dict
  "DATABASE_URL" "database.existingSecret" "REDIS_URL" "redis.existingSecret" "QDRANT_URL" "qdrant.url"
  "REPOSYNC_DATABASE_URL" "database.existingSecret" "REPOSYNC_REDIS_URL" "redis.existingSecret"
  "REPOSYNC_QDRANT_URL" "qdrant.url" "REPOSYNC_QDRANT_API_KEY" "qdrant.apiKey.existingSecret"
  "QDRANT_API_KEY" "qdrant.apiKey.existingSecret" "REPOSYNC_API_TOKEN" "auth.existingSecret"
  "REPOSYNC_HOST" "server.host" "REPOSYNC_PORT" "server.port" "REPOSYNC_LOG_LEVEL" "server.logLevel"
  "REPOSYNC_ROOT_PATH" "registry.http.root_path"
  "REPOSYNC_CONFIG" "existingRegistry" "REPOSYNC_STATE_DIR" "persistence" "REPOSYNC_LOG_FORMAT" "server.logFormat"
  "POD_NAME" "" "SSL_CERT_FILE" "ca.configMap"
  "HTTP_PROXY" "proxy.http" "HTTPS_PROXY" "proxy.https" "NO_PROXY" "proxy.noProxy"
-}}
{{- if .Values.signIn.existingSecret -}}
  {{- $_ := set $owned "GITLAB_SIGN_IN_SECRET" "signIn.existingSecret" -}}
  {{- if and (not .Values.existingRegistry.configMap) (not (has "GITLAB_SIGN_IN_SECRET" (fromYamlArray (include "reposync.secretVariables" $registry)))) -}}
    {{- $problems = append $problems "signIn.existingSecret is set, and nobody would use it: registry.http.sign_in.client_secret is not ${GITLAB_SIGN_IN_SECRET}." -}}
  {{- end -}}
{{- end -}}
{{- $proxied := or .Values.proxy.http .Values.proxy.https -}}
{{- $names := keys .Values.secretEnv -}}
{{- range .Values.extraEnv -}}{{- $names = append $names .name -}}{{- end -}}
{{- range $name := $names -}}
  {{- if hasKey $owned $name -}}
    {{- $free := or (and (has $name (list "HTTP_PROXY" "HTTPS_PROXY" "NO_PROXY")) (not $proxied)) (and (eq $name "SSL_CERT_FILE") (not (include "reposync.hasCa" $))) -}}
    {{- if not $free -}}
      {{- $value := get $owned $name -}}
      {{- $problems = append $problems (printf "The variable %s is the chart's own%s: take it out of secretEnv or extraEnv." $name (empty $value | ternary "" (printf ", and comes from %s" $value))) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- /* By where it is used, and by the endings that nothing but a secret has. */ -}}
{{- $secrets := fromYamlArray (include "reposync.secretVariables" $registry) -}}
{{- range .Values.extraEnv -}}
  {{- if and .value (or (has .name $secrets) (regexMatch "(^|_)(TOKEN|PASSWORD|PASSWD|SECRET|API_?KEY|PRIVATE_KEY)$" (upper .name))) -}}
    {{- $problems = append $problems (printf "extraEnv sets %s in the clear, and everybody who can read Deployments could read it. Name its Secret under secretEnv: {%s: {secret: ..., key: ...}}." .name .name) -}}
  {{- end -}}
{{- end -}}
{{- if ne (len $names) (len (uniq $names)) -}}
  {{- $problems = append $problems "secretEnv and extraEnv set a variable twice." -}}
{{- end -}}
{{- range $key, $url := dict "redis.url" .Values.redis.url "qdrant.url" .Values.qdrant.url "proxy.http" .Values.proxy.http "proxy.https" .Values.proxy.https -}}
  {{- if $url -}}
    {{- $scheme := eq $key "redis.url" | ternary "rediss?" "https?" -}}
    {{- if contains "@" $url -}}
      {{- $instead := dict "redis.url" "redis.existingSecret" "qdrant.url" "qdrant.apiKey.existingSecret" "proxy.http" "secretEnv.HTTP_PROXY" "proxy.https" "secretEnv.HTTPS_PROXY" -}}
      {{- $problems = append $problems (printf "%s holds credentials, and everybody who can read Deployments could read them. Put them into a Secret, and name it in %s." $key (get $instead $key)) -}}
    {{- else if not (regexMatch (printf "^%s://[^/\\s]+[^\\s]*$" $scheme) $url) -}}
      {{- $problems = append $problems (printf "%s is %q, but has to be a URL that begins with %s://." $key $url (replace "s?" "" $scheme)) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- if and .Values.redis.existingSecret .Values.redis.url -}}
  {{- $problems = append $problems "redis.existingSecret and redis.url are both set: keep one of them." -}}
{{- end -}}
{{- if and .Values.qdrant.apiKey.existingSecret (not (include "reposync.externalIndex" .)) -}}
  {{- $problems = append $problems "qdrant.apiKey is set, and no qdrant.url." -}}
{{- end -}}
{{- if and .Values.ca.configMap .Values.ca.secret -}}
  {{- $problems = append $problems "ca.configMap and ca.secret are both set: keep one of them." -}}
{{- end -}}

{{- /* The end of a pod. */ -}}
{{- if and (kindIs "string" $daemon.shutdown_grace_seconds) (not .Values.terminationGracePeriodSeconds) -}}
  {{- $problems = append $problems "registry.daemon.shutdown_grace_seconds comes from a variable, which the chart cannot read: set terminationGracePeriodSeconds." -}}
{{- end -}}
{{- if .Values.terminationGracePeriodSeconds -}}
  {{- $needed := int (include "reposync.neededGraceSeconds" .) -}}
  {{- if lt (int .Values.terminationGracePeriodSeconds) $needed -}}
    {{- $problems = append $problems (printf "terminationGracePeriodSeconds is %d, and pods would be killed while they hand back their runs. Set at least %d, or remove it; registry.daemon.shutdown_grace_seconds and preStopSleepSeconds make it less." (int .Values.terminationGracePeriodSeconds) $needed) -}}
  {{- end -}}
{{- end -}}

{{- /* How it is reached. */ -}}
{{- if .Values.ingress.enabled -}}
  {{- if not .Values.ingress.hosts -}}
    {{- $problems = append $problems "ingress.enabled is true, and ingress.hosts names no host." -}}
  {{- end -}}
  {{- if $http.allowed_hosts -}}
    {{- range $host := .Values.ingress.hosts -}}
      {{- $allowed := has $host $http.allowed_hosts -}}
      {{- range $http.allowed_hosts -}}
        {{- if and (hasPrefix "*." .) (hasSuffix (trimPrefix "*" .) $host) -}}{{- $allowed = true -}}{{- end -}}
      {{- end -}}
      {{- if not $allowed -}}
        {{- $problems = append $problems (printf "ingress.hosts names %s, and registry.http.allowed_hosts does not: every request would be answered with 421. Add it there." $host) -}}
      {{- end -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- if .Values.metrics.serviceMonitor.enabled -}}
  {{- $access := include "reposync.metricsAccess" . -}}
  {{- if eq $access "off" -}}
    {{- $problems = append $problems "metrics.serviceMonitor is enabled, and registry.http.metrics is off." -}}
  {{- else if and (eq $access "token") .Values.auth.existingSecret (not .Values.metrics.serviceMonitor.token.existingSecret) -}}
    {{- $problems = append $problems "/metrics needs a token unless registry.http.metrics is open, and Prometheus has none: set metrics.serviceMonitor.token.existingSecret to a Secret that holds one bare token." -}}
  {{- end -}}
{{- end -}}
{{- if and .Values.autoscaling.enabled (not .Values.metrics.rules.enabled) (not .Values.autoscaling.metric.selector) -}}
  {{- $problems = append $problems "autoscaling is enabled, and nothing records reposync:queue_depth. Set metrics.rules.enabled to true; or, if your adapter has its own query, autoscaling.metric.selector." -}}
{{- end -}}
{{- if and (not (kindIs "invalid" .Values.podDisruptionBudget.minAvailable)) (not (kindIs "invalid" .Values.podDisruptionBudget.maxUnavailable)) -}}
  {{- $problems = append $problems "podDisruptionBudget has both minAvailable and maxUnavailable: set one of them to null." -}}
{{- end -}}

{{- $least := int (.Values.autoscaling.enabled | ternary .Values.autoscaling.minReplicas .Values.replicas) -}}
{{- if and .Values.podDisruptionBudget.enabled (gt $least 1) -}}
  {{- $most := .Values.podDisruptionBudget.maxUnavailable | toString -}}
  {{- $kept := .Values.podDisruptionBudget.minAvailable -}}
  {{- if and (kindIs "invalid" $kept) (has $most (list "0" "0%")) -}}
    {{- $problems = append $problems "podDisruptionBudget.maxUnavailable is 0, and no node with a pod could ever be drained. Set at least 1." -}}
  {{- else if or (eq ($kept | toString) "100%") (and (regexMatch "^[0-9]+$" ($kept | toString)) (ge (int $kept) $least)) -}}
    {{- $problems = append $problems (printf "podDisruptionBudget.minAvailable is %v of %d pods, and no node with a pod could ever be drained. Set less." $kept $least) -}}
  {{- end -}}
{{- end -}}

{{- if $problems -}}
{{- fail (printf "\n\n- %s\n" (join "\n- " $problems)) -}}
{{- end -}}
{{- end -}}

{{/* Paths of secrets in a registry that come from no variable, as a YAML list. The program itself only warns. */}}
{{- define "reposync.clearSecrets" -}}
{{- $found := list -}}
{{- range $section := list "gitlab" "repositories" -}}
  {{- $items := get $ $section -}}
  {{- if kindIs "slice" $items -}}
    {{- range $index, $item := $items -}}
      {{- if kindIs "map" $item -}}
        {{- range $key := list "token" "webhook_secret" "webhook_signing" "password" -}}
          {{- if include "reposync.isClear" (get $item $key) -}}
            {{- $found = append $found (printf "%s[%d].%s" $section $index $key) -}}
          {{- end -}}
        {{- end -}}
        {{- range $key := list "git" "url" -}}
          {{- if regexMatch "^[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*:[^/?#$]+@" (get $item $key | toString) -}}
            {{- $found = append $found (printf "%s[%d].%s" $section $index $key) -}}
          {{- end -}}
        {{- end -}}
      {{- end -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- range $section := list "embedding" "qdrant" -}}
  {{- $item := get $ $section -}}
  {{- if kindIs "map" $item -}}
    {{- if include "reposync.isClear" (get $item "api_key") -}}
      {{- $found = append $found (printf "%s.api_key" $section) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- range $path, $secret := fromYaml (include "reposync.httpSecrets" .) -}}
  {{- if include "reposync.isClear" $secret -}}{{- $found = append $found $path -}}{{- end -}}
{{- end -}}
{{- toYaml $found -}}
{{- end -}}

{{/* Sentences about schedules that begin as a crontab and are none, as a YAML list; words and variables are the
     program's to read. */}}
{{- define "reposync.wrongCrontabs" -}}
{{- $schedules := dict -}}
{{- with .defaults -}}{{- if kindIs "map" . -}}{{- $_ := set $schedules "defaults.schedule" (get . "schedule") -}}{{- end -}}{{- end -}}
{{- range $section := list "repositories" "groups" -}}
  {{- $items := get $ $section -}}
  {{- if kindIs "slice" $items -}}
    {{- range $index, $item := $items -}}
      {{- if kindIs "map" $item -}}
        {{- range $key := list "schedule" "discover" -}}
          {{- $_ := set $schedules (printf "%s[%d].%s" $section $index $key) (get $item $key) -}}
        {{- end -}}
      {{- end -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- $fields := list
  (list "minute" "[0-5]?[0-9]") (list "hour" "(?:[01]?[0-9]|2[0-3])") (list "day of the month" "(?:0?[1-9]|[12][0-9]|3[01])")
  (list "month" "(?:0?[1-9]|1[0-2]|[A-Za-z]{3,9})") (list "day of the week" "(?:[0-7]|[A-Za-z]{3,9})")
-}}
{{- $found := list -}}
{{- range $path, $schedule := $schedules -}}
  {{- $text := $schedule | default "" | toString | trim -}}
  {{- if and (regexMatch "^[0-9*?]" $text) (not (regexMatch "^[0-9]+ ?[A-Za-z]" $text)) (not (contains "$" $text)) -}}
    {{- $words := regexSplit "\\s+" $text -1 -}}
    {{- if ne (len $words) 5 -}}
      {{- $found = append $found (printf "registry.%s is %q: a crontab has 5 fields (minute hour day month weekday), this has %d." $path $text (len $words)) -}}
    {{- else -}}
      {{- range $index, $field := $fields -}}
        {{- $value := last $field -}}
        {{- $item := printf "(?:[*?]|%s(?:-%s)?)(?:/[0-9]+)?" $value $value -}}
        {{- if not (regexMatch (printf "^%s(?:,%s)*$" $item $item) (index $words $index)) -}}
          {{- $found = append $found (printf "registry.%s is %q: no crontab has the %s %q." $path $text (first $field) (index $words $index)) -}}
        {{- end -}}
      {{- end -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- toYaml $found -}}
{{- end -}}

{{/* Names of the variables that stand where a secret is expected, as a YAML list. */}}
{{- define "reposync.secretVariables" -}}
{{- $texts := list -}}
{{- range $section := list "gitlab" "repositories" -}}
  {{- $items := get $ $section -}}
  {{- if kindIs "slice" $items -}}
    {{- range $item := $items -}}
      {{- if kindIs "map" $item -}}
        {{- range $key := list "token" "webhook_secret" "webhook_signing" "password" -}}
          {{- $texts = append $texts (get $item $key | default "" | toString) -}}
        {{- end -}}
      {{- end -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- range $section := list "embedding" "qdrant" -}}
  {{- $item := get $ $section -}}
  {{- if kindIs "map" $item -}}
    {{- $texts = append $texts (get $item "api_key" | default "" | toString) -}}
  {{- end -}}
{{- end -}}
{{- $texts = concat $texts (values (fromYaml (include "reposync.httpSecrets" .))) -}}
{{- $found := list -}}
{{- range regexFindAll "\\$\\{[A-Za-z_][A-Za-z0-9_]*" (join " " $texts | replace "$$" "") -1 -}}
  {{- $found = append $found (trimPrefix "${" .) -}}
{{- end -}}
{{- toYaml (uniq $found) -}}
{{- end -}}

{{/* The secrets of `http` by their paths: of the sign-in, and service tokens. */}}
{{- define "reposync.httpSecrets" -}}
{{- $found := dict -}}
{{- if kindIs "map" .http -}}
  {{- if kindIs "map" .http.sign_in -}}
    {{- $_ := set $found "http.sign_in.client_secret" (.http.sign_in.client_secret | default "" | toString) -}}
  {{- end -}}
  {{- if kindIs "slice" .http.tokens -}}
    {{- range $index, $item := .http.tokens -}}
      {{- if kindIs "map" $item -}}
        {{- $_ := set $found (printf "http.tokens[%d].token" $index) ($item.token | default "" | toString) -}}
      {{- end -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- toYaml $found -}}
{{- end -}}

{{/* A secret that comes from no variable, or has a default. */}}
{{- define "reposync.isClear" -}}
{{- $text := . | default "" | toString | replace "$$" "" -}}
{{- if and $text (or (not (contains "${" $text)) (regexMatch "\\$\\{[A-Za-z0-9_]*:-[^}]" $text)) -}}true{{- end -}}
{{- end -}}

{{/* Names of variables that have no default, as a YAML list. `$$` is a dollar sign. */}}
{{- define "reposync.variablesNeeded" -}}
{{- $found := list -}}
{{- range regexFindAll "\\$\\{[A-Za-z_][A-Za-z0-9_]*\\}" (toYaml . | replace "$$" "") -1 -}}
  {{- $found = append $found (. | trimPrefix "${" | trimSuffix "}") -}}
{{- end -}}
{{- toYaml (uniq $found) -}}
{{- end -}}
