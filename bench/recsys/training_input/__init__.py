"""The input of a training job beside Python and tf.data: `python -m bench.recsys.training_input`."""
