"""Models as ONNX files, which other programs and languages run without Python."""

from .model import model_proto as model_proto
from .model import write as write
