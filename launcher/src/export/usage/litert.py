from ai_edge_litert.interpreter import Interpreter

interpreter = Interpreter(str(here / "@ARTIFACT@"))
for port in interpreter.get_input_details():
    interpreter.resize_tensor_input(port["index"], given[port["name"]].shape)
interpreter.allocate_tensors()
for port in interpreter.get_input_details():
    interpreter.set_tensor(port["index"], given[port["name"]])
interpreter.invoke()
answers = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
