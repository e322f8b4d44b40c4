"""The restricted profile of Kubernetes' Pod Security Standards, with the baseline that it contains.

https://kubernetes.io/docs/concepts/security/pod-security-standards/
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
PROFILES = {"RuntimeDefault", "Localhost"}
SELINUX_TYPES = {"container_t", "container_init_t", "container_kvm_t", "container_engine_t"}
SYSCTLS = {
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
}


def violations(spec: Mapping[str, Any]) -> Iterator[str]:
    """What the admission controller would refuse a pod with this spec for."""
    pod = spec.get("securityContext") or {}
    containers = [each for key in ("initContainers", "containers", "ephemeralContainers") for each in spec.get(key, [])]
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(name):
            yield name
    for volume in spec.get("volumes", []):
        if not volume.keys() - {"name"} <= VOLUMES:
            yield f"volume {volume['name']}"
    for sysctl in pod.get("sysctls", []):
        if sysctl["name"] not in SYSCTLS:
            yield f"sysctl {sysctl['name']}"
    yield from _both("pod", pod)
    for container in containers:
        name, own = container["name"], container.get("securityContext") or {}
        yield from _both(name, own)
        if own.get("privileged"):
            yield f"{name}: privileged"
        if own.get("procMount", "Default") != "Default":
            yield f"{name}: procMount"
        if any(port.get("hostPort") for port in container.get("ports", [])):
            yield f"{name}: hostPort"
        if own.get("allowPrivilegeEscalation") is not False:
            yield f"{name}: allowPrivilegeEscalation"
        if own.get("runAsNonRoot", pod.get("runAsNonRoot")) is not True:
            yield f"{name}: runAsNonRoot"
        if (own.get("seccompProfile") or pod.get("seccompProfile") or {}).get("type") not in PROFILES:
            yield f"{name}: seccompProfile"
        capabilities = own.get("capabilities") or {}
        if "ALL" not in capabilities.get("drop", []):
            yield f"{name}: capabilities are kept"
        if not set(capabilities.get("add", [])) <= {"NET_BIND_SERVICE"}:
            yield f"{name}: capabilities are added"
        handlers = [container.get(key) or {} for key in ("startupProbe", "livenessProbe", "readinessProbe")]
        handlers += (container.get("lifecycle") or {}).values()
        if any((handler.get(kind) or {}).get("host") for handler in handlers for kind in ("httpGet", "tcpSocket")):
            yield f"{name}: a probe of another host"


def _both(name: str, context: Mapping[str, Any]) -> Iterator[str]:
    """What holds for a pod's security context and for a container's."""
    if context.get("runAsUser") == 0:
        yield f"{name}: runAsUser"
    if (context.get("windowsOptions") or {}).get("hostProcess"):
        yield f"{name}: hostProcess"
    if (context.get("appArmorProfile") or {}).get("type", "RuntimeDefault") not in PROFILES:
        yield f"{name}: appArmorProfile"
    options = context.get("seLinuxOptions") or {}
    if options.get("type") not in (None, "", *SELINUX_TYPES) or options.get("user") or options.get("role"):
        yield f"{name}: seLinuxOptions"
