"""Reference model families that train under holdfast; they arrive one package at a time."""
