import onnxruntime

session = onnxruntime.InferenceSession(here / "@ARTIFACT@")
answers = session.run(["@OUTPUT@"], given)[0]
