"""Trained models as files for other programs: ONNX, torch's exported programs, safetensors; each
with a model card beside it."""
