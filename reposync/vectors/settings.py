"""What an index is opened with. Free of Qdrant's client, so that reading the configuration stays quick."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Quantization = Literal["none", "int8"]


@dataclass(frozen=True, slots=True)
class IndexSettings:
    """One collection at one place: a server where `url` is given, else the embedded engine in `state_dir`.

    Shards, replicas, quantization and placement hold for a collection that is made now, and on a server alone; None
    leaves the choice to the server. `write_consistency_factor`: replicas that confirm a write.
    """

    collection: str
    state_dir: Path
    url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    ca_file: Path | None = None
    timeout_seconds: float = 30.0
    attempts: int = 6
    longest_wait_seconds: float = 30.0
    shard_number: int | None = None
    replication_factor: int | None = None
    write_consistency_factor: int | None = None
    quantization: Quantization = "none"
    on_disk_payload: bool = True
