import coremltools

# On macOS.
model = coremltools.models.MLModel(str(here / "@ARTIFACT@"))
answers = model.predict(given)["@OUTPUT@"]
