"""What is learned from and what is tested: walk-forward folds and combinatorial purged splits, proven free of leaks."""

from foxflow.splits.combinations import Combination, combinatorial, paths
from foxflow.splits.folds import Fold, Mask, Times, final, walk_forward

__all__ = ["Combination", "Fold", "Mask", "Times", "combinatorial", "final", "paths", "walk_forward"]
