"""CIFAR images, one binary task per class or super-class."""
