"""ONNX files as onnxruntime runs them."""

import onnxruntime


class Program:
    """A file as onnxruntime runs it."""

    def __init__(self, path):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # the tests run side by side
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.inputs = {i.name: i.type for i in session.get_inputs()}
        self.outputs = {o.name: o.type for o in session.get_outputs()}
        self.session = session

    def __call__(self, **columns):
        return dict(zip(self.outputs, self.session.run(None, columns), strict=True))


def program(model, tmp_path, **arguments):
    path = tmp_path / "model.onnx"
    model.to_onnx(path, **arguments)
    return Program(path)
