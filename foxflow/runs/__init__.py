"""The runs of a home folder: which there are, one of them by its id, and two side by side."""

from foxflow.runs.comparing import Comparison, compare
from foxflow.runs.reading import Run, find, listed, read

__all__ = ["Comparison", "Run", "compare", "find", "listed", "read"]
