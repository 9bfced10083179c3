"""What the measures are called, and what they mean: for the page and the terminal alike."""

MEASURES: dict[str, tuple[str, str]] = {
    "tokens": ("tokens", "that the engine sampled"),
    "tokens_without_log_prob": ("tokens left out", "without a finite log-prob on both sides"),
    "responses": ("responses", "with a token that is compared"),
    "abs_mean": ("mean |Delta|", "nats a token"),
    "abs_p50": ("median |Delta|", "nats"),
    "abs_p90": ("|Delta|, 90 %", "nats"),
    "abs_p99": ("|Delta|, 99 %", "nats"),
    "abs_p999": ("|Delta|, 99.9 %", "nats"),
    "abs_max": ("largest |Delta|", "nats"),
    "abs_above_ln2_share": ("|Delta| above ln 2", "share of tokens off by more than a factor of 2"),
    "outside_band_share": ("outside 0.9 to 1.1", "share of tokens by their ratio e^Delta"),
    "k1": ("KL(engine, trainer), k1", "nats a token, mean of -Delta"),
    "k3": ("KL(engine, trainer), k3", "nats a token, mean of e^Delta - 1 - Delta"),
    "chi2": ("chi-square", "mean of (e^Delta - 1)^2"),
    "mult_prob_error": ("probability error", "mean of e^|Delta|; 1 without drift"),
    "probability_pearson": ("correlation of probabilities", "Pearson's; 1 without drift"),
    "sequence_sum_mean": ("sum of Delta", "nats a response, mean"),
    "sequence_sum_abs_max": ("largest |sum of Delta|", "nats, of a response"),
    "sequence_mean_abs_mean": ("|mean Delta|", "nats a token, mean over responses"),
    "sequence_geometric_mean": ("geometric ratio", "mean over responses of e^(mean Delta)"),
    "ppl_trainer": ("perplexity, trainer", "mean over responses"),
    "ppl_rollout": ("perplexity, engine", "mean over responses"),
    "ppl_ratio": ("perplexity, trainer / engine", "mean over responses"),
    "ess_share": ("effective sample size", "of the responses' weights, as a share of them"),
    "pareto_k": ("Pareto k-hat", "of the responses' weights; reliable up to 0.7"),
    "token_ess_share": ("effective sample size, tokens", "of the tokens' weights, as a share of them"),
    "token_pareto_k": ("Pareto k-hat, tokens", "of the tokens' weights"),
}
"""Name under `drift/` -> what it is called, and its unit or meaning; in the order in which they are shown."""

_COUNTS = ("tokens", "tokens_without_log_prob", "responses")


def shown(name: str, value: float) -> str:
    """A measure's number as text."""
    if name in _COUNTS:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def group_label(name: str) -> str:
    """'position 16 to 63', 'engine's probability 1 to 10 %': what a group's name means."""
    kind, *bounds = name.split("_")
    if kind == "replica":
        return f"server {bounds[0]}"
    if kind == "age":
        return f"weights {bounds[0]} updates old"
    end = f"{bounds[0]} on" if bounds[1] == "up" else f"{bounds[0]} to {bounds[1]}"
    # no line ends before the sign
    return f"engine's probability {end}\u00a0%" if kind == "probability" else f"{kind} {end}"
