"""Arithmetic whose bits do not depend on what else is in the batch: `precision.batch_invariant`.

Sums are exact, so that no order of adding, no blocking of a product and no padding can change them: operands are
rounded to grids so coarse that fp64 holds every partial sum. All else is elementwise, of operations that IEEE 754
rounds in one way, never a library's exp or log, which vector units and their remainders compute differently.
"""
