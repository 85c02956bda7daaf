"""Models as ONNX files, which programs of many languages run."""

from .model import onnx_bytes as onnx_bytes
