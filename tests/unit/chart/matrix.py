"""Installations that people make, as values."""

from __future__ import annotations

from typing import Any

from tests.fixtures.chart import ROOT, together

DATABASE = {"database": {"existingSecret": "postgresql", "key": "uri"}}
REDIS = {"redis": {"existingSecret": "redis"}}
QDRANT = {"qdrant": {"url": "https://qdrant.example.com:6333", "apiKey": {"existingSecret": "qdrant"}}}
SERVERS = together(DATABASE, REDIS, QDRANT)
GITLAB = {
    "secretEnv": {"GITLAB_TOKEN": {"secret": "gitlab", "key": "token"}},
    "registry": {
        "gitlab": [{"name": "main", "url": "https://gitlab.example.com", "token": "${GITLAB_TOKEN}"}],
        "repositories": [{"name": "payments-api", "gitlab": "main", "project": "platform/payments-api"}],
    },
}
SIGN_IN = together(
    GITLAB,
    {
        "signIn": {"existingSecret": "gitlab-application"},
        "registry": {
            "http": {
                "access": "gitlab",
                "gitlab": "main",
                "public_url": "https://reposync.example.com",
                "sign_in": {"client_id": "0123abcd", "client_secret": "${GITLAB_SIGN_IN_SECRET}"},
            }
        },
    },
)
INGRESS = {
    "ingress": {
        "enabled": True,
        "className": "nginx",
        "annotations": {"nginx.ingress.kubernetes.io/proxy-body-size": "25m"},
        "hosts": ["tools.example.com"],
        "tls": [{"secretName": "tools", "hosts": ["tools.example.com"]}],
    },
    "registry": {"http": {"root_path": "/reposync", "trusted_proxies": ["10.0.0.0/8"]}},
}
MONITORED = {"metrics": {"serviceMonitor": {"enabled": True, "labels": {"release": "x"}}, "rules": {"enabled": True}}}
FENCED = {
    "networkPolicy": {
        "enabled": True,
        "ingress": {"from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress"}}}]},
        "egress": {"rules": [{"to": [{"ipBlock": {"cidr": "10.1.0.0/16"}}], "ports": [{"port": 5432}]}]},
    }
}
SCALED = together(MONITORED, {"autoscaling": {"enabled": True, "maxReplicas": 9}})
PLACED: dict[str, Any] = {
    "affinity": {"nodeAffinity": {}},
    "nodeSelector": {"kubernetes.io/arch": "amd64"},
    "tolerations": [{"key": "batch", "operator": "Exists"}],
    "priorityClassName": "high",
    "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["gitlab.example.com"]}],
    "podLabels": {"team": "search"},
    "podAnnotations": {"note": "true"},
    "annotations": {"note": "1"},
    "commonLabels": {"owner": "search"},
    "resources": {"requests": {"cpu": 1, "memory": "1Gi"}, "limits": {}},
}
PRIVATE = {
    "ca": {"configMap": "company"},
    "proxy": {"http": "http://proxy:3128", "https": "http://proxy:3128", "noProxy": ["qdrant.example.com"]},
    "image": {
        "repository": "registry.example.com:5000/tools/reposync",
        "digest": f"sha256:{'0' * 64}",
        "pullSecrets": ["pull"],
        "pullPolicy": "Always",
    },
    "extraEnv": [{"name": "PGSSLROOTCERT", "value": "/etc/reposync/ca/ca.crt"}],
    "envFrom": [{"secretRef": {"name": "more"}}],
    "extraVolumes": [{"name": "more", "configMap": {"name": "more"}}],
    "extraVolumeMounts": [{"name": "more", "mountPath": "/more", "readOnly": True}],
}
FEATURES: dict[str, dict[str, Any]] = {
    "three pods": {"replicas": 3},
    "database": DATABASE,
    "redis": REDIS,
    "qdrant": QDRANT,
    "gitlab": GITLAB,
    "ingress": INGRESS,
    "monitored": MONITORED,
    "fenced": FENCED,
    "scaled": SCALED,
    "placed": PLACED,
    "private": PRIVATE,
    "no volume": {"persistence": {"enabled": False}},
    "a volume of one's own": {"persistence": {"existingClaim": "mine"}},
    "a registry of one's own": {"existingRegistry": {"configMap": "mine", "key": "r.yaml"}},
    "a token of one's own": {"auth": {"existingSecret": "mine", "key": "tokens"}},
    "an account of one's own": {"serviceAccount": {"create": False, "name": "mine"}},
    "metrics by token": {"registry": {"http": {"metrics": "token"}}},
    "people sign in at GitLab": SIGN_IN,
    "no redis needed": {"redis": {"required": False}},
    "no migration": {"migration": {"enabled": False}},
    "no workers": {"server": {"workers": False, "scheduler": False}},
    "asleep": {"replicas": 0},
}
INSTALLATIONS: dict[str, dict[str, Any]] = {
    "nothing set": {},
    "one pod with GitLab": together(GITLAB, {"persistence": {"storageClass": "fast", "size": "50Gi"}}),
    "a file as it is": {
        "registry": (ROOT / "config" / "repositories.yaml").read_text(),
        "secretEnv": {"GITLAB_TOKEN": {"secret": "gitlab", "key": "token"}},
    },
    "many pods": together(SERVERS, GITLAB, {"replicas": 3}),
    "many pods, everything": together(SERVERS, GITLAB, INGRESS, FENCED, SCALED, PLACED, PRIVATE),
    "external database, embedded index": DATABASE,
    "embedded database, external index": together(QDRANT, {"persistence": {"enabled": False}}),
    "everything existing": together(
        {"existingRegistry": {"configMap": "mine"}, "auth": {"existingSecret": "mine"}},
        {"persistence": {"existingClaim": "mine"}, "serviceAccount": {"create": False}},
    ),
}
