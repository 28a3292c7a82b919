"""An engine of one's own at a launch: what it refuses, the settings that it brings, and the keys that its hosts need."""

from __future__ import annotations

from typing import Any

import pytest

from deploy.config.run import RunConfig
from deploy.engines.base import NoEngine, find_engine
from deploy.errors import ConfigError, RunRefused
from deploy.launch import access, prepare
from deploy.launch.prepare import LaunchRequest
from tests.deploy.launch.test_prepare import REQUEST, pids  # noqa: F401

OWN = "tests.deploy.launch.test_engine:Lender"


class Open(NoEngine):
    """Brings loopback and no actors here."""

    @classmethod
    def prepare(cls, config: RunConfig) -> dict[str, Any]:
        return {"deploy": {"bind": "127.0.0.1", "local_actors": 0}}


class Lender(Open):
    """Refuses a first port."""

    @classmethod
    def prepare(cls, config: RunConfig) -> dict[str, Any]:
        if config.deploy.port:
            raise RunRefused("the cluster has no such port")
        return super().prepare(config)


def asked(**deploy: Any) -> LaunchRequest:
    return LaunchRequest({**REQUEST.flags, "deploy": {"on": OWN, **deploy}})


@pytest.mark.usefixtures("pids")
def test_settings_of_the_engine_are_below_the_users_and_the_run_has_keys() -> None:
    with prepare.prepare(asked(local_actors=3)) as ready:
        assert (ready.config.deploy.bind, ready.config.deploy.local_actors) == ("127.0.0.1", 3)
        assert (ready.run.key_folder / "public").is_file()
        ready.write()
    with prepare.prepare(LaunchRequest({}, name=ready.run.name)) as again:
        assert (again.config.deploy.on, again.config.deploy.local_actors) == (OWN, 3), "a resume keeps them"


@pytest.mark.usefixtures("pids")
def test_a_stopped_run_without_an_engine_may_get_one() -> None:
    with prepare.prepare(REQUEST) as ready:
        ready.write()
    with prepare.prepare(LaunchRequest({"deploy": {"on": OWN}}, name=ready.run.name)) as again:
        assert (again.config.deploy.bind, again.config.deploy.local_actors) == ("127.0.0.1", 0)


@pytest.mark.usefixtures("pids")
def test_a_run_that_goes_on_at_another_address_binds_that_and_keeps_the_rest() -> None:
    with prepare.prepare(asked(local_actors=3)) as ready:
        ready.write()
    text = ready.run.config.read_text()
    assert text.count('"127.0.0.1"') == 1
    ready.run.config.write_text(text.replace('"127.0.0.1"', '"192.0.2.77"'))  # of no machine
    with prepare.prepare(LaunchRequest({}, name=ready.run.name)) as again:
        assert (again.config.deploy.bind, again.config.deploy.local_actors) == ("127.0.0.1", 3)


@pytest.mark.usefixtures("pids")
def test_a_first_port_may_be_given_where_the_engine_brings_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "is_free", lambda host, port: True)
    with prepare.prepare(asked(on=OWN.replace("Lender", "Open"), port=7701)) as ready:
        assert (ready.config.deploy.bind, ready.config.deploy.port) == ("127.0.0.1", 7701)


@pytest.mark.usefixtures("pids")
def test_what_the_engine_refuses_ends_the_launch() -> None:
    with pytest.raises(RunRefused, match="^the cluster has no such port$"):
        prepare.prepare(asked(port=7701, bind="127.0.0.1"))


def test_a_name_that_is_no_engine_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="^--on: no engine is called 'rai'; did you mean ray"):
        find_engine("rai")
    assert find_engine("") is NoEngine
