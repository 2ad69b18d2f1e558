// Runs @ARTIFACT@, in this folder, on the rows of a file that is named, e.g. [[1.5, null, 3]], or else on rows that are made up.
// What the columns are and their order is in @ARTIFACT@.json: a category goes in by its number there, null is missing.
//
@IMPORTS@
#include <cmath>
#include <cstdint>
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
    std::string text = "@ROWS@", word;
    if (count > 1) {
        std::ifstream file(arguments[1]);
        text.assign(std::istreambuf_iterator<char>(file), {});
    }
    for (char &c : text)
        if (std::strchr("[],", c)) c = ' ';
    std::vector<float> rows;
    for (std::istringstream words(text); words >> word;) rows.push_back(word == "null" ? NAN : std::stod(word));
    if (rows.empty() || rows.size() % @WIDTH@ != 0) {
        std::cerr << "expected rows of @WIDTH@ numbers\n";
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
    for (int64_t row = 0, width = size / n; row < n; ++row) {
        for (int64_t i = 0; i < width; ++i) std::cout << std::setprecision(9) << answers[row * width + i] << (i + 1 < width ? ' ' : '\n');
    }
}
