"""Adam with the interface of Apex, on torch's fused CPU kernel."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim.adam import adam


class FusedAdam(torch.optim.Optimizer):
    """AdamW (Loshchilov and Hutter, arXiv:1711.05101), or Adam with L2 decay where `adam_w_mode` is False.

    The interface is apex.optimizers.FusedAdam's: the state of a parameter is `exp_avg` and `exp_avg_sq`, and the
    number of steps is an int under the key 'step' of each group, absent before the first step. Megatron's distributed
    optimizer saves and loads exactly that. The arithmetic is torch's own fused kernel.

    Args:
        params: parameters or groups of them; floating point, dense.
        lr: learning rate.
        bias_correction: must be True.
        betas: decay rates of the two moments.
        eps: added to the root of the second moment.
        adam_w_mode: decoupled weight decay.
        weight_decay: its coefficient.
        amsgrad: must be False.
        set_grad_none: what `zero_grad` does by default.
        capturable: accepted and without meaning here: it is about CUDA graphs.

    Raises:
        ValueError: a setting that this implementation does not have.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        set_grad_none: bool = True,
        capturable: bool = False,
    ) -> None:
        if not bias_correction or amsgrad:
            raise ValueError(
                f"FusedAdam on the CPU has bias_correction=True and amsgrad=False only, "
                f"not bias_correction={bias_correction} and amsgrad={amsgrad}."
            )
        defaults = {"lr": lr, "bias_correction": True, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)
        self.adam_w_mode = adam_w_mode
        self.set_grad_none = set_grad_none

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Drops the gradients, or fills them with zeros; `set_grad_none` decides where `set_to_none` is None."""
        super().zero_grad(set_to_none=self.set_grad_none if set_to_none is None else set_to_none)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates every parameter that has a gradient; returns the closure's value, or None.

        A group without parameters keeps its step count, as Apex does.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            if group["params"]:
                group["step"] = int(group.get("step", 0)) + 1
                self._update(group)
        return loss

    def _update(self, group: dict[str, Any]) -> None:
        params = [param for param in group["params"] if param.grad is not None]
        for param in params:
            if not self.state[param]:
                self.state[param]["exp_avg"] = torch.zeros_like(param)
                self.state[param]["exp_avg_sq"] = torch.zeros_like(param)
        # The kernel counts up tensors of its own, one a parameter.
        steps = list(torch.full((len(params),), float(group["step"] - 1)).unbind())
        adam(
            params,
            [param.grad for param in params],
            [self.state[param]["exp_avg"] for param in params],
            [self.state[param]["exp_avg_sq"] for param in params],
            [],
            steps,
            fused=True,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
            decoupled_weight_decay=self.adam_w_mode,
        )


def patch_optimizer() -> None:
    """Gives Megatron's optimizers `FusedAdam` in place of Apex's.

    Without Transformer Engine and Apex they fall back to torch's AdamW, with which the distributed optimizer cannot
    load a checkpoint: torch counts steps for each parameter, Apex for each group. With this class and the flags below
    the CPU runs the code path that production runs.
    """
    import megatron.core.optimizer as optimizers
    from megatron.core.optimizer import distrib_optimizer

    optimizers.Adam = FusedAdam
    optimizers.USING_PYTORCH_OPTIMIZER = False
    distrib_optimizer.Adam = FusedAdam
    distrib_optimizer.HAVE_APEX_OR_TE = True
    distrib_optimizer.USING_APEX_OPTIMIZER = True
