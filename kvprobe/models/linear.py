"""Small systems of linear equations, as the cost fit and the calibration need them."""

from __future__ import annotations

from collections.abc import Callable


def solve(matrix: list[list[float]], singular: Callable[[list[float], float], bool]) -> list[float] | None:
    """Gauss-Jordan with row pivots on the ``n`` x ``n+1`` augmented matrix, in place.

    ``singular(row, pivot)`` says whether a pivot is too small to divide by; then the answer is None.
    """
    n = len(matrix)
    for i in range(n):
        pivot = max(range(i, n), key=lambda k: abs(matrix[k][i]))
        if singular(matrix[pivot], abs(matrix[pivot][i])):
            return None
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        for k in range(n):
            if k != i:
                factor = matrix[k][i] / matrix[i][i]
                matrix[k] = [a - factor * b for a, b in zip(matrix[k], matrix[i], strict=True)]
    return [matrix[i][n] / matrix[i][i] for i in range(n)]
