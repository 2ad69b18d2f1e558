import onnxruntime

session = onnxruntime.InferenceSession(str(here / "@ARTIFACT@"))
answers = session.run(["@OUTPUT@"], given)[0]
