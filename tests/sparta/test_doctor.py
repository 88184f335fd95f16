"""`sparta doctor`: what it finds, and what it says where something is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparta import doctor
from sparta.doctor import Finding, document, examine, healthy
from sparta.kernels import machine_for
from sparta.kernels.codegen.cache import ObjectCache
from sparta.reporting import render
from sparta.tesa.errors import KernelCompileError


def found(topic: str) -> Finding:
    """The finding about `topic` on this machine."""
    return next(finding for finding in examine() if finding.topic == topic)


def test_every_topic_comes_once() -> None:
    topics = [finding.topic for finding in examine()]
    assert len(topics) == len(set(topics))
    assert {"python", "torch", "instruction set", "AMX", "native code", "threads", "kernel cache", "GPU"} <= set(topics)


def test_only_trouble_has_advice() -> None:
    assert all(bool(finding.advice) == (finding.status != "ok") for finding in examine())


def test_refused_machine_code_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(ir: str, entry: str) -> None:
        message = "mprotect was refused"
        raise KernelCompileError(message)

    monkeypatch.setattr(doctor, "load", refuse)
    assert found("native code").status == "failed"
    assert "mprotect was refused" in found("native code").fact
    assert not healthy(examine())


def test_one_thread_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "threading_backend", lambda: "single-threaded: no OpenMP")
    assert found("threads").status == "warning"
    assert healthy(examine())


def test_a_generic_processor_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "host_machine", lambda: machine_for(frozenset()))
    assert found("vectors").status == "warning"


def test_the_cache_is_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "cache")
    cache.store("key", b"code")
    monkeypatch.setattr(doctor, "default_cache", lambda: cache)
    assert "1 kernels" in found("kernel cache").fact


def test_a_cache_that_is_off_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "default_cache", lambda: ObjectCache(None))
    assert found("kernel cache").status == "warning"


def test_the_document_shows_advice_for_trouble_only() -> None:
    text = render(document((Finding("a", "fine"), Finding("b", "bad", "failed", "repair it"))), "markdown")
    assert "b: repair it" in text
    assert "FAILED" in text
    assert "a:" not in text
