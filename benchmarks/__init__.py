"""The papers' tables beside ours, and speed as ratios: `python -m benchmarks NAME`."""
