"""Small training scripts that each go wrong in one known way, one for each detector.

Every module is an ordinary PyTorch script, runnable on its own, that trains on synthetic data
and falls into one fault category. Each has ``CODE`` (the category), ``FIRST_STEP`` (the 0-based
optimizer step at which the fault first appears) and ``main()``; ``LINE_OF`` is text of the faulty
line, where there is one, and ``OPTIONS`` what ``holdfast run`` is given. Nothing is imported here.
"""

ALL = (
    "nonfinite_loss",
    "nonfinite_gradient",
    "nonfinite_parameter",
    "nonfinite_buffer",
    "nonfinite_input",
    "scaler_collapse",
    "loss_spike",
    "gradient_explosion",
    "divergence",
    "state_not_detached",
    "evaluation_with_graph",
    "graph_kept",
    "tensors_pile_up",
    "host_growth",
    "worker_growth",
    "too_big",
    "recompile",
    "slow_down",
    "host_sync",
    "input_bound",
    "stall",
    "crash",
    "swallowed_exception",
    "unreadable_sample",
    "hang",
    "replicas_out_of_sync",
    "straggler",
    "unused_parameters",
    "same_data",
    "uneven_batches",
    "different_settings",
    "collective_hang",
    "rank_lost",
)
