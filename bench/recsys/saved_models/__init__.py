"""RECom's E and F as TensorFlow's users export them, compiled from the SavedModel alone."""
