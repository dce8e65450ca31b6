"""Audits from outside: does an engine emit the same law with speculation on and off?"""
