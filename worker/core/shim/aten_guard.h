// The error channel of the aten shim: one sentence per thread.
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>
#include <exception>
#include <string>

namespace enn {

inline std::string& last_error() {
  static thread_local std::string text;
  return text;
}

// Runs `body`; turns an exception into 1 and a sentence without the C++ backtrace.
template <class F>
int32_t guarded(F&& body) {
  try {
    body();
    return 0;
  } catch (const c10::Error& e) {
    last_error() = e.what_without_backtrace();
  } catch (const std::exception& e) {
    last_error() = e.what();
  } catch (...) {
    last_error() = "an exception that is not a std::exception";
  }
  return 1;
}

} // namespace enn
