//! Steps rows of several sequences through the model at once.
