"""The digest that decides whether an earlier result of a job serves.

Laws:
1. Only a job that declares `inputs` has a digest. Its workspace holds these files and nothing else, so they are all that it can read.
2. The digest covers everything that is known when the plan is made and can change the result: the content and mode of every input, the
   commands, the environment, the toolchain, the labels, the network, services, secrets by name, keys of caches, and what the job hands on
   (artifacts, reports, downloads). The outputs of the jobs before it and the restored caches are added when its turn comes.
3. Limits, timeouts and retries are left out: they decide whether a job succeeds, not what it makes, and only successes are reused. Globs
   are left out too: what counts is the files that they match. The commit is left out: the same files in another commit give the same digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import msgspec

from tenure.ci.globs import PathIndex
from tenure.ci.job import CiJob

DIGEST_VERSION = "tenure-ci-1"
"""Changes with every change of what is covered or of how jobs are isolated."""
_LEFT_OUT = frozenset({"checkout", "limits", "reuse", "trusted", "scope", "failure_rules", "why"})


class FileDigests:
    """Digests of sets of files of one commit, each computed once."""

    def __init__(self, index: PathIndex, files: Mapping[str, tuple[str, str]]) -> None:
        self._index = index
        self._files = files
        """Path -> mode and blob id."""
        self._known: dict[tuple[str, ...], str] = {}

    def digest(self, globs: Sequence[str]) -> str:
        """The digest of the paths, modes and contents of all files that match."""
        wanted = tuple(sorted(set(globs)))
        found = self._known.get(wanted)
        if found is None:
            hashed = hashlib.sha256()
            for at in self._index.find_all(wanted):
                path = self._index.paths[at]
                mode, blob = self._files[path]
                hashed.update(f"{mode} {blob} {path}\0".encode())
            found = self._known[wanted] = hashed.hexdigest()
        return found


def compute_job_digest(job: CiJob, files: str, isolation: str = "sandbox") -> str:
    """The digest of a job whose inputs have the digest `files`."""
    covered = {name: value for name, value in msgspec.to_builtins(job).items() if name not in _LEFT_OUT}
    if job.secrets:  # a result with secrets and a result without them are two
        covered["trusted"] = job.trusted
    for artifact in covered.get("artifacts", ()):
        artifact.pop("retention_seconds", None)
    for name in ("labels", "network", "secrets"):
        if name in covered:
            covered[name] = sorted(covered[name])
    whole = {"version": DIGEST_VERSION, "isolation": isolation, "files": files, "job": covered}
    return hashlib.sha256(msgspec.json.encode(whole, order="sorted")).hexdigest()
