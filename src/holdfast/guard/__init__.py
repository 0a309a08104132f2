"""Guard around each step: probes measure, the guard decides, the recorder writes."""
