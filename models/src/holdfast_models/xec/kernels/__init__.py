"""Blocks of the encoder in a few Triton kernels, for a GPU that computes in bf16.

``model.blocks`` says what they compute; ``check`` compares them with it on the device before they
are used, and ``ops`` makes of them what autograd and the compiler can work with.
"""
