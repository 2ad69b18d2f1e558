import tensorflow as tf

model = tf.saved_model.load(str(here / "@ARTIFACT@")).signatures["serving_default"]
answers = model(**{name: tf.constant(values) for name, values in given.items()})["@OUTPUT@"].numpy()
