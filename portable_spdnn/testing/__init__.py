"""The contract suite of backends, and its oracle; run as ``python -m portable_spdnn.testing NAME``.

It needs the extra ``testing``: pytest and hypothesis.
"""
