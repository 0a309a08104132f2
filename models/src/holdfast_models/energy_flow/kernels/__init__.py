"""The loop of a GPU: products by cuBLAS, all between them in a few kernels, one autograd function.

``mode`` sends a batch through it, ``chunks`` a batch that is too large for its gradients,
``graph`` replays it as a CUDA graph. Every kernel has a plain torch form in ``reference_*``, which
runs everywhere and says what the kernel must compute.
"""
