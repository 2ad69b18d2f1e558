// Runs @ARTIFACT@, in this folder, on the rows of a file that is named, e.g. [[1.5, null, 3]], or else on rows that are made up.
// What the columns are and their order is in @ARTIFACT@.json: a category goes in by its number there, null is missing.
//
@IMPORTS@
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

int main(int count, char **arguments) {
    std::string text = "@ROWS@", spaced, word;
    if (count > 1) {
        std::ifstream file(arguments[1]);
        text.assign(std::istreambuf_iterator<char>(file), {});
    }
    for (char c : text) {
        if (c == '[' || c == ']') spaced += {' ', c, ' '};
        else spaced += c == ',' ? ' ' : c;
    }
    // A row of another width would be read as a part of the next one.
    std::vector<float> rows;
    int depth = 0, width = 0;
    bool fits = true;
    for (std::istringstream words(spaced); fits && words >> word;) {
        if (word == "[") {
            fits = ++depth <= 2;
            width = 0;
        } else if (word == "]") {
            fits = depth > 0 && (depth == 1 || width == @WIDTH@);
            --depth;
        } else {
            char *end = nullptr;
            rows.push_back(word == "null" ? NAN : std::strtof(word.c_str(), &end));
            fits = depth == 2 && (end == nullptr || *end == 0);
            ++width;
        }
    }
    if (!fits || depth != 0 || rows.empty()) {
        std::cerr << "expected rows of @WIDTH@ numbers, e.g. [[1.5, null, 3]]; found " << (fits ? "none, or an end before the last ]" : word) << "\n";
        return 1;
    }
    const int64_t n = rows.size() / @WIDTH@;

    // What goes in besides rows begins at zero.
    std::vector<std::pair<const char *, std::vector<int64_t>>> inputs = {@INPUTS@};
    std::vector<std::vector<float>> given;
    for (auto &[name, shape] : inputs) {
        int64_t size = 1;
        for (int64_t length : shape) size *= length;
        given.emplace_back(size);
        if (!std::strcmp(name, "@X@")) given.back() = rows;
    }

@BODY@
    for (int64_t row = 0, cells = size / n; row < n; ++row) {
        for (int64_t i = 0; i < cells; ++i) std::cout << std::setprecision(9) << answers[row * cells + i] << (i + 1 < cells ? ' ' : '\n');
    }
}
