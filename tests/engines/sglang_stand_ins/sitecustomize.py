"""Python reads this at its start: declares two operators of torchvision's before torchvision is imported."""

import sys
from typing import Any


class _DeclareOperators:
    """A finder that finds nothing; it is asked before torchvision is."""

    declared: Any = None

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name == "torchvision" and self.declared is None:
            import torch

            self.declared = torch.library.Library("torchvision", "DEF")
            self.declared.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            self.declared.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


sys.meta_path.insert(0, _DeclareOperators())  # type: ignore[arg-type]
