"""Faults of what tokens are drawn from and what log-probs are of."""

from dataclasses import replace

from megarl.diagnose.selftest.fault import Fault, Planted
from megarl.diagnose.selftest.scene import Scene
from megarl.diagnose.selftest.small import STOP
from megarl.drift.diagnosis.rollouts import Sampling

_TEMPERATURES = (0.6, 0.75, 0.9, 1.2, 1.4)
_TOP_P = (0.7, 0.8, 0.9, 0.95)
_TOP_K = (5, 10, 20, 40)


def _engine_samples(scene: Scene, sampling: Sampling, says: str = "") -> Planted:
    scene.engine.samples = scene.engine.reports = sampling
    return Planted(scene.rollouts(), says)


def _temperature(scene: Scene) -> Planted:
    temperature = _TEMPERATURES[scene.choose(len(_TEMPERATURES))]
    return _engine_samples(scene, Sampling(temperature))


def _top_p(scene: Scene) -> Planted:
    top_p = _TOP_P[scene.choose(len(_TOP_P))]
    return _engine_samples(scene, Sampling(top_p=top_p), "top-p")


def _top_k(scene: Scene) -> Planted:
    top_k = _TOP_K[scene.choose(len(_TOP_K))]
    return _engine_samples(scene, Sampling(top_k=top_k), "top-k")


def _no_stop(scene: Scene) -> Planted:
    return _engine_samples(scene, Sampling(banned=(STOP,)), f"without the stop token {STOP}")


def _raw(scene: Scene, sampling: Sampling) -> Planted:
    scene.sampling = scene.engine.samples = sampling
    scene.engine.reports = Sampling()
    return Planted(scene.rollouts())


def _raw_temperature(scene: Scene) -> Planted:
    return _raw(scene, Sampling((0.6, 0.7, 0.8)[scene.choose(3)]))


def _raw_top_p(scene: Scene) -> Planted:
    return _raw(scene, Sampling(top_p=(0.7, 0.8)[scene.choose(2)]))


def _raw_unmasked(scene: Scene) -> Planted:
    """Neither side's log-probs know of the truncation: they agree, and the samples are others."""
    scene.engine.samples = Sampling(top_p=0.7)
    return Planted(scene.rollouts())


def _trainer_temperature(scene: Scene) -> Planted:
    """The engine does what was asked for, and the trainer forgets the temperature."""
    scene.sampling = scene.engine.samples = scene.engine.reports = Sampling(0.7)
    rollouts = scene.rollouts()
    forgotten = scene.trainer_log_probs(replace(rollouts, sampling=Sampling()))
    return Planted(replace(rollouts, trainer_log_probs_BT=forgotten))


FAULTS = (
    Fault("sampling temperature", "temperature", "engine", _temperature),
    Fault("temperature forgotten by the trainer", "temperature", "trainer", _trainer_temperature),
    Fault("top-p without a mask", "truncation", "engine", _top_p),
    Fault("top-k without a mask", "truncation", "engine", _top_k),
    Fault("raw log-probs, temperature", "raw_log_probs", "engine", _raw_temperature),
    Fault("raw log-probs, top-p", "raw_log_probs", "engine", _raw_top_p),
    Fault("raw log-probs of both sides, top-p", "raw_log_probs", "engine", _raw_unmasked),
    Fault("stop token banned", "stop_token", "engine", _no_stop),
)
