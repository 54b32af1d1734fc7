"""Print what a lock installs as a CycloneDX document: each package with its version and the hashes of its files.

python requirements/sbom.py requirements/onceload.txt            the packages of the lock
python requirements/sbom.py requirements/image.txt --debian      and Debian's packages of this machine

The same lock gives the same document, byte by byte.
"""

import hashlib
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from uuid import UUID

_PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
#: A package of a lock: its name, its version, for which machines it is, and its hashes.
_PACKAGE = re.compile(
    r"^(?P<name>[\w.-]+)==(?P<version>[^\s;]+)(?: ; (?P<marker>[^\\\n]*))?(?P<hashes>(?: *\\\n[^\\\n]*)*)", re.MULTILINE
)


def main() -> None:
    lock, *options = sys.argv[1:]
    components = [_of_lock(match) for match in _PACKAGE.finditer(Path(lock).read_text("utf-8"))]
    if "--debian" in options:
        components += _of_debian()
    print(json.dumps(_document(components), indent=1))


def _of_lock(found: "re.Match[str]") -> dict[str, Any]:
    purl = f"pkg:pypi/{found['name']}@{found['version']}"
    component = {"type": "library", "bom-ref": purl, "name": found["name"], "version": found["version"], "purl": purl}
    hashes = [{"alg": "SHA-256", "content": each} for each in re.findall(r"sha256:([0-9a-f]{64})", found["hashes"])]
    # A package has several files, one for each machine and version of Python. An installer takes one of them.
    component["externalReferences"] = [{"type": "distribution", "url": purl, "hashes": [each]} for each in hashes]
    if found["marker"]:
        component["properties"] = [{"name": "onceload:only_if", "value": found["marker"].strip()}]
    return component


def _of_debian() -> list[dict[str, Any]]:
    asked = ["dpkg-query", "--show", "--showformat", "${Package} ${Version} ${Architecture}\n"]
    lines = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()
    return [_debian(*line.split()) for line in lines]


def _debian(name: str, version: str, architecture: str) -> dict[str, Any]:
    purl = f"pkg:deb/debian/{name}@{version.replace('+', '%2B').replace(':', '%3A')}?arch={architecture}"
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


def _document(components: list[dict[str, Any]]) -> dict[str, Any]:
    project = tomllib.loads(_PROJECT.read_text("utf-8"))["project"]
    name, version = project["name"], project["version"]
    purl = f"pkg:pypi/{name}@{version}"
    content = hashlib.sha256(json.dumps([purl, components]).encode()).digest()
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": UUID(bytes=content[:16], version=4).urn,
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": purl,
                "name": name,
                "version": version,
                "purl": purl,
                "licenses": [{"license": {"id": project["license"]}}],
            }
        },
        "components": components,
    }


if __name__ == "__main__":
    main()
