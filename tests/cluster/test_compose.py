"""The compose file and the Dockerfile: docker-compose accepts the one, and what both say is bounded and closed."""

import shutil
import subprocess

import pytest

from tests.cluster.compose import EXAMPLE, FILE, ROOT, SECRETS, asked_for, made_up, services


@pytest.fixture(scope="module")
def given():
    return made_up()


def test_every_setting_is_explained_and_every_explained_one_is_asked_for():
    explained = {line.partition("=")[0] for line in EXAMPLE.read_text().splitlines() if line and line[0] != "#"}

    assert explained == asked_for()


@pytest.mark.parametrize("secret", SECRETS)
def test_nothing_starts_without(secret, given):
    with pytest.raises(AssertionError, match=f"{secret}: set it in"):
        services({**given, secret: ""})


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="docker-compose is not installed")
def test_docker_compose_accepts_the_file(given, tmp_path):
    file = tmp_path / "env"
    file.write_text("".join(f"{name}={value}\n" for name, value in given.items()))

    done = subprocess.run(
        ["docker-compose", "--env-file", str(file), "--file", str(FILE), "config", "--services"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert {*done.stdout.split()} == services(given).keys()


def test_every_service_has_bounds_a_health_check_and_nothing_open_to_others(given):
    for name, service in services(given).items():
        assert service["mem_limit"], name
        assert service["cpus"], name
        assert service["restart"] == ("no" if name == "migrate" else "unless-stopped")
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name
        assert "healthcheck" in service or name == "migrate"


def test_the_image_is_of_a_user_without_rights_and_takes_what_runs_alone():
    image = (ROOT / "Dockerfile").read_text()

    stages = [line for line in image.splitlines() if line.startswith("FROM")]
    assert len(stages) == 2
    assert all("@sha256:" in stage for stage in stages)
    assert image.index("USER onceload") < image.index("CMD")
    assert "--require-hashes" in image
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[1] == "*"
    assert "!tests" not in ignored
