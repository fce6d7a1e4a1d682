"""compiler/patterns/vision"""
