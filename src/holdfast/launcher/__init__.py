"""The parent of ``holdfast run``: starts the script, passes signals on, drains and judges."""
