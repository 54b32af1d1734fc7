"""The list of packages that is made of a lock: CycloneDX accepts it, and it has all of the lock and nothing else."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / "requirements"
LOCKED = re.compile(r"^([\w.-]+)==([^\s;]+)", re.MULTILINE)


def sbom(lock, *options, **environment):
    command = [sys.executable, str(REQUIREMENTS / "sbom.py"), str(lock), *options]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, **environment}, encoding="utf-8"
    )
    return done.stdout


@pytest.mark.parametrize("lock", ["onceload.txt", "image.txt"])
def test_it_has_all_packages_and_all_hashes_of_the_lock(lock):
    text = (REQUIREMENTS / lock).read_text("utf-8")

    said = sbom(REQUIREMENTS / lock)

    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(said) is None
    components = json.loads(said)["components"]
    assert sorted((each["name"], each["version"]) for each in components) == sorted(LOCKED.findall(text))
    assert sorted(re.findall(r'"content": "(\w+)"', said)) == sorted(re.findall(r"sha256:(\w+)", text))


def test_it_says_for_which_machines_a_package_is(tmp_path):
    (tmp_path / "lock").write_text(
        "# A comment.\n"
        "one==1.0 ; sys_platform == 'win32' \\\n"
        f"    --hash=sha256:{'a' * 64} \\\n"
        f"    --hash=sha256:{'b' * 64}\n"
        "two==2.0.post1 \\\n"
        f"    --hash=sha256:{'c' * 64}\n"
    )

    one, two = json.loads(sbom(tmp_path / "lock"))["components"]

    assert (one["purl"], len(one["externalReferences"])) == ("pkg:pypi/one@1.0", 2)
    assert one["properties"] == [{"name": "onceload:only_if", "value": "sys_platform == 'win32'"}]
    assert (two["version"], len(two["externalReferences"]), "properties" in two) == ("2.0.post1", 1, False)


def test_it_has_the_packages_of_debian_if_asked(tmp_path):
    (tmp_path / "lock").write_text("")
    (tmp_path / "dpkg-query").write_text("#!/bin/sh\nprintf 'libc6 2.36-9+deb12u10 amd64\\nlogin 1:4.13 amd64\\n'\n")
    (tmp_path / "dpkg-query").chmod(0o755)

    said = sbom(tmp_path / "lock", "--debian", PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(said) is None
    assert [each["purl"] for each in json.loads(said)["components"]] == [
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=amd64",
        "pkg:deb/debian/login@1%3A4.13?arch=amd64",
    ]


def test_the_image_and_its_tools_have_the_versions_of_the_lock():
    locked = set(LOCKED.findall((REQUIREMENTS / "onceload.txt").read_text("utf-8")))

    for part in ("image.txt", "build.txt"):
        assert set(LOCKED.findall((REQUIREMENTS / part).read_text("utf-8"))) <= locked
