"""What the workers received against what was sent, and the likeliest cause where the two differ."""

from collections.abc import Mapping, Sequence

from megarl.sync.bucket import TensorSpec


def first_mismatch(specs: Sequence[TensorSpec], sent: Mapping[str, str], received: Mapping[str, str]) -> str | None:
    """None where every digest that was sent was received; else one sentence about the first that was not.

    Args:
        specs: every tensor of the plan, in its order.
        sent: digests over the trainer's own tensors, by name.
        received: digests over the bytes that a worker was given, by name.
    """
    for spec in specs:
        own = sent.get(spec.name)
        if own is None or received.get(spec.name) == own:
            continue
        given = received.get(spec.name)
        return (
            f"{spec.name} did not arrive as it was sent: digest {own} here, {given or 'none'} at the engine; "
            f"{_cause(spec.name, sent, received)}"
        )
    return None


def _cause(name: str, sent: Mapping[str, str], received: Mapping[str, str]) -> str:
    given = received.get(name)
    if given is None:
        return "it was not sent, or under another name"
    for other, own in sent.items():
        if other != name and own == given:
            return f"the engine was given the bytes of {other} under this name"
    return "its bytes changed on the way: another shard, another dtype, a transposed or a stale tensor"
